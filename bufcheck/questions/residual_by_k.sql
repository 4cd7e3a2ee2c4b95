/*
question = "Does the disagreement with the actor depend on how many actions were offered?"
needs = "actor"
*/
SELECT
    num_actions,
    count(*) AS rows,
    count(residual) AS replayed,
    count(*) FILTER (WHERE abs(residual) > allowed) AS disagreeing,
    disagreeing / nullif(replayed, 0) AS disagreeing_share,
    avg(residual) FILTER (WHERE isfinite(residual)) AS residual_mean,
    median(residual) FILTER (WHERE isfinite(residual)) AS residual_median,
    avg(abs(residual)) FILTER (WHERE isfinite(residual)) AS residual_size_mean,
    max(abs(residual)) AS residual_size_max
FROM replay
GROUP BY num_actions
ORDER BY num_actions
