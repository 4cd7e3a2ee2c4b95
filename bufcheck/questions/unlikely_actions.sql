/*
question = "Which sampled actions were the least likely?"
needs = ""
[parameters]
limit = 20
[help]
limit = "how many rows to show"
*/
SELECT
    row_id,
    episode_id,
    timestep,
    agent_id,
    policy_version,
    num_actions,
    legal_actions,
    action_index,
    chosen_id,
    old_log_prob,
    exp(old_log_prob::DOUBLE) AS probability
FROM digest
WHERE old_log_prob IS NOT NULL
ORDER BY old_log_prob, row_id
LIMIT $limit
