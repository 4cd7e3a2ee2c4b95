/*
question = "How large are the differences between stored and replayed log-probs, in powers of ten?"
needs = "actor"
*/
WITH sized AS (
    SELECT
        abs(residual) > allowed AS disagrees,
        CASE WHEN isfinite(residual) AND residual <> 0 THEN floor(log10(abs(residual)))::INTEGER END AS decade,
        CASE
            WHEN residual = 0 THEN 'equal'
            WHEN isfinite(residual) THEN 'from 1e' || decade || ' to 1e' || decade + 1
            ELSE 'not finite'
        END AS size
    FROM replay
    WHERE residual IS NOT NULL
)
SELECT
    size,
    decade,
    count(*) AS rows,
    count(*) / sum(count(*)) OVER () AS share,
    count(*) FILTER (WHERE disagrees) AS disagreeing
FROM sized
GROUP BY size, decade
ORDER BY size = 'not finite', size <> 'equal', decade
