/*
code = "SU007"
name = "action-masked"
severity = "error"
scope = "row"
removes = true
applies = "categorical"
needs = ["digest.chosen_legal"]
summary = "The chosen action is illegal by the row's own mask."
why = "Its probability under the masked policy is 0: the ratio is infinite or NaN."
cause = "The mask is that of the next state, or sampling ignored it."
remedy = "Fetch the mask before env.step, and store the one that sampling used."
message = "action_mask forbids action_index {action_index}"
*/
SELECT row_id, action_index
FROM digest
WHERE chosen_legal = 0
