/*
question = "How well does the critic predict the return, for each agent?"
needs = ""
*/
-- Explained variance: 1 is perfect, 0 no better than a constant, below 0 worse than one.
WITH judged AS (
    SELECT agent_id, value::DOUBLE AS predicted, "return"::DOUBLE AS target
    FROM digest
    WHERE isfinite(value) AND isfinite("return")
)
SELECT
    agent_id,
    count(*) AS rows,
    avg(predicted) AS value_mean,
    avg(target) AS return_mean,
    avg(predicted - target) AS bias,
    sqrt(avg((predicted - target) * (predicted - target))) AS root_mean_square_error,
    1 - var_pop(target - predicted) / nullif(var_pop(target), 0) AS explained_variance,
    CASE WHEN var_pop(target) > 0 AND var_pop(predicted) > 0 THEN corr(predicted, target) END AS correlation
FROM judged
GROUP BY agent_id
ORDER BY agent_id
