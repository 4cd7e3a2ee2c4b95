/*
code = "SU006"
name = "action-id-mismatch"
severity = "error"
scope = "row"
removes = true
applies = "categorical"
needs = ["digest.action_id", "digest.action_index", "digest.chosen_id | metadata.policy_subset_all"]
summary = "action_id is not the id that action_index points at."
why = "The environment executed one action and the update will credit another."
cause = "The subset was re-ordered after sampling, or action and subset come from different steps."
remedy = "Store subset_indices in the order the actor saw, and take action_id from it."
message = "action_id is {action_id}, but subset_indices[{action_index}] is {chosen_id}"
*/
SELECT
    row_id,
    action_id,
    action_index,
    CASE WHEN $policy_subset = 'all' THEN coalesce(chosen_id, action_index) ELSE chosen_id END
        AS chosen_id
FROM digest
WHERE action_id
    <> CASE WHEN $policy_subset = 'all' THEN coalesce(chosen_id, action_index) ELSE chosen_id END
