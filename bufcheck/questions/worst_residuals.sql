/*
question = "Which rows does the actor disagree with most?"
needs = "actor"
[parameters]
limit = 20
[help]
limit = "how many rows to show"
*/
-- NaN counts as greater than every number: what could not be scored comes first.
SELECT
    row_id,
    episode_id,
    timestep,
    agent_id,
    policy_version,
    num_actions,
    old_log_prob,
    log_prob AS replayed_log_prob,
    residual,
    allowed,
    path AS actor_path
FROM replay LEFT JOIN actors USING (actor)
WHERE residual IS NOT NULL
ORDER BY abs(residual) DESC, row_id
LIMIT $limit
