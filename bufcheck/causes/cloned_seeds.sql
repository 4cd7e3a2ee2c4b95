/*
meaning = "Workers share a seed, so that episodes are stored several times under different ids."
when = "first"
evidence = "state, action, log-prob and reward repeat those of another episode, more often than the policy's own chances allow"
fix = "Seed every worker differently (seed + worker index). A deterministic environment with one start may repeat itself rightly."
*/
SELECT row_id FROM findings WHERE rule = 'duplicate-payload'
