/*
question = "How many actions were offered, and how often?"
needs = ""
*/
SELECT
    num_actions,
    count(*) AS rows,
    count(*) / sum(count(*)) OVER () AS share,
    avg(legal_actions) AS legal_mean,
    count(*) FILTER (WHERE legal_actions = 1) AS forced
FROM digest
GROUP BY num_actions
ORDER BY num_actions
