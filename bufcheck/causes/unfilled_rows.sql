/*
meaning = "Rows of a preallocated buffer that were never written were dumped too."
when = "first"
rank = 0
evidence = "state, action, log-prob and reward are all zero, as a fresh buffer is"
fix = "Dump the filled part only: buffer[:size], not buffer[:capacity]."
*/
SELECT row_id FROM findings WHERE rule = 'unfilled-row'
