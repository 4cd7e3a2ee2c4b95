/*
question = "What did each rule find, and where does it begin?"
needs = ""
*/
-- A finding without a row is about the whole dump.
SELECT
    code,
    rule,
    severity,
    count(*) AS findings,
    count(DISTINCT row_id) AS rows,
    count(DISTINCT episode_id) AS episodes,
    count(DISTINCT agent_id) AS agents,
    min(row_id) AS first_row,
    count(DISTINCT row_id) FILTER (WHERE cause IS NULL) AS unexplained
FROM findings
GROUP BY code, rule, severity
ORDER BY code, rule, severity
