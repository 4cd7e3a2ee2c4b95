/*
meaning = "The same rows were appended twice: a resume, a retry, or overlapping shards."
when = "first"
evidence = "the row has the key of an earlier one, and is identical to it in every column"
fix = "Append each rollout once; after a resume, continue behind the last stored step."
*/
SELECT row_id FROM findings WHERE rule = 'duplicate-key' AND message LIKE '%are identical%'
