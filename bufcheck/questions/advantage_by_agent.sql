/*
question = "How are the advantages of each agent spread?"
needs = ""
*/
SELECT
    agent_id,
    count(*) AS rows,
    count(advantage) FILTER (WHERE isfinite(advantage)) AS finite,
    avg(advantage) FILTER (WHERE isfinite(advantage)) AS advantage_mean,
    stddev_samp(advantage) FILTER (WHERE isfinite(advantage)) AS advantage_stddev,
    min(advantage) FILTER (WHERE isfinite(advantage)) AS advantage_min,
    median(advantage) FILTER (WHERE isfinite(advantage)) AS advantage_median,
    max(advantage) FILTER (WHERE isfinite(advantage)) AS advantage_max,
    avg((advantage > 0)::INTEGER) FILTER (WHERE isfinite(advantage)) AS positive_share,
    count(*) FILTER (WHERE advantage = 0) AS zeros
FROM digest
GROUP BY agent_id
ORDER BY agent_id
