/*
code = "VA007"
name = "valid-ratio-low"
severity = "warning"
scope = "dump"
needs = ["findings.row_id"]
summary = "Too few samples are sound: by the errors found here, or by the trainer's own `valid` column."
why = "What is left is no longer a sample of the policy's behaviour; an update on it is biased towards whatever survived."
cause = "A systematic bug upstream, rather than a few bad samples."
remedy = "Mend the cause and collect again; skip this batch."
message = "{judge} calls {share} of the rows sound, under {least}"
[parameters]
least = 0.9
*/
WITH ratios AS (
    SELECT
        'bufcheck' AS judge,
        1 - count(DISTINCT row_id) / $rows AS share
    FROM findings
    WHERE severity = 'error'
    UNION ALL
    SELECT 'the column valid' AS judge, count(*) FILTER (WHERE valid) / count(*) AS share
    FROM digest
    WHERE valid IS NOT NULL
    HAVING count(*) > 0
)
SELECT NULL::BIGINT AS row_id, judge, round(share, 4) AS share, $least AS least
FROM ratios
WHERE share < $least
