/*
question = "Whose log-probs does the actor not confirm: which agent, which policy version?"
needs = "actor"
*/
SELECT
    agent_id,
    policy_version,
    count(*) AS rows,
    count(residual) AS replayed,
    count(*) FILTER (WHERE abs(residual) > allowed) AS disagreeing,
    disagreeing / nullif(replayed, 0) AS disagreeing_share,
    avg(residual) FILTER (WHERE isfinite(residual)) AS residual_mean,
    median(residual) FILTER (WHERE isfinite(residual)) AS residual_median,
    avg(abs(residual)) FILTER (WHERE isfinite(residual)) AS residual_size_mean,
    max(abs(residual)) AS residual_size_max
FROM replay
GROUP BY agent_id, policy_version
ORDER BY agent_id, policy_version
