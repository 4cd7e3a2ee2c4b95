/*
code = "BR005"
name = "constant-num-actions"
severity = "info"
scope = "dump"
applies = "categorical"
needs = ["digest.num_actions"]
legal_if = ["policy_subset_all"]
summary = "num_actions is the same in every row of a dump that lists subsets."
why = "Harmless if every state offers so many actions. If not, a default replaced the real number, and softmaxes run over the wrong set."
cause = "A fallback such as K = 5 where the number was missing, or an environment with a fixed number of options."
remedy = "Check one state whose options you know. If all actions are always offered, declare policy.subset = \"all\"."
message = "num_actions is {num_actions} in all {rows} rows"
*/
SELECT NULL::BIGINT AS row_id, min(num_actions) AS num_actions, count(*) AS rows
FROM digest
HAVING min(num_actions) = max(num_actions) AND count(*) > 1
