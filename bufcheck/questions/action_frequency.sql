/*
question = "Which actions are chosen, and how often?"
needs = ""
[parameters]
limit = 50
[help]
limit = "how many actions to show"
*/
-- Where a row lists no subset, every action was offered and the index is the global id.
WITH chosen AS (
    SELECT
        coalesce(chosen_id, CASE WHEN subset_len IS NULL THEN action_index END) AS global_id,
        agent_id,
        old_log_prob
    FROM digest
)
SELECT
    global_id,
    count(*) AS rows,
    count(*) / sum(count(*)) OVER () AS share,
    count(DISTINCT agent_id) AS agents,
    avg(old_log_prob) FILTER (WHERE isfinite(old_log_prob)) AS log_prob_mean
FROM chosen
GROUP BY global_id
ORDER BY rows DESC, global_id
LIMIT $limit
