/*
meaning = "The step that only resets the environment was stored as if it were experience."
when = "first"
evidence = "one row lies behind its agent's end, with a state of its own"
fix = "With next-step autoreset skip the step after a done: its action was ignored. Or use same-step autoreset and final_observation."
*/
SELECT row_id
FROM findings JOIN (SELECT row_id, episode_id, agent_id FROM digest) USING (row_id)
WHERE rule = 'row-after-done'
QUALIFY count(*) OVER (PARTITION BY episode_id, agent_id) = 1
