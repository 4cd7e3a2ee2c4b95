/*
question = "Which rows did a rule find?"
needs = ""
[parameters]
rule = ""
limit = 20
[help]
rule = "name, code or the start of one, such as log-prob-mismatch, LP001, LP; empty for every rule"
limit = "how many rows to show"
*/
SELECT
    row_id,
    episode_id,
    timestep,
    agent_id,
    code,
    rule,
    severity,
    cause,
    old_log_prob,
    replayed_log_prob,
    message
FROM findings
WHERE rule = lower($rule) OR starts_with(lower(code), lower($rule))
ORDER BY row_id NULLS FIRST, code, message
LIMIT $limit
