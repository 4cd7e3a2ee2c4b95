/*
question = "Which rows hold a NaN or an infinity, and in which columns?"
needs = ""
[parameters]
limit = 20
[help]
limit = "how many rows to show"
*/
-- A logit may be -infinity: that is how masks are written.
WITH judged AS (
    SELECT
        row_id,
        episode_id,
        timestep,
        agent_id,
        concat_ws(
            ', ',
            CASE WHEN state_nonfinite THEN 'state_embed' END,
            CASE WHEN action_nonfinite THEN 'action' END,
            CASE WHEN NOT isfinite(old_log_prob) THEN 'old_log_prob' END,
            CASE WHEN logits_nonfinite THEN 'logits' END,
            CASE WHEN action_mean_nonfinite THEN 'action_mean' END,
            CASE WHEN action_std_nonfinite THEN 'action_std' END,
            CASE WHEN NOT isfinite(reward) THEN 'reward' END,
            CASE WHEN NOT isfinite(value) THEN 'value' END,
            CASE WHEN NOT isfinite(advantage) THEN 'advantage' END,
            CASE WHEN NOT isfinite("return") THEN 'return' END,
            CASE WHEN NOT isfinite(bootstrap_value) THEN 'bootstrap_value' END,
            CASE WHEN NOT isfinite(new_log_prob) THEN 'new_log_prob' END,
            CASE WHEN NOT isfinite(entropy) THEN 'entropy' END
        ) AS not_finite
    FROM digest
)
SELECT row_id, episode_id, timestep, agent_id, not_finite
FROM judged
WHERE not_finite <> ''
ORDER BY row_id
LIMIT $limit
