/*
code = "SU001"
name = "action-index-out-of-range"
severity = "error"
scope = "row"
removes = true
applies = "categorical"
needs = ["digest.action_index", "digest.num_actions"]
summary = "action_index is not one of 0..num_actions-1."
why = "Gathering with it reads another action's logit, or fails, or wraps around silently where the index is negative."
cause = "A global id stored as a local index, the action of another step, or num_actions of another step."
remedy = "Store the index into this very sample's subset_indices."
message = "action_index is {action_index}, with num_actions {num_actions}"
*/
SELECT row_id, action_index, num_actions
FROM digest
WHERE action_index < 0 OR action_index >= num_actions
