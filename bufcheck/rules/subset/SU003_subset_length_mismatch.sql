/*
code = "SU003"
name = "subset-length-mismatch"
severity = "error"
scope = "row"
removes = true
applies = "categorical"
needs = ["digest.num_actions", "digest.subset_len | digest.mask_len | digest.logits_len | metadata.policy_subset_all"]
summary = "subset_indices, action_mask or logits do not have num_actions entries, or num_actions is not the whole action space where the whole is offered."
why = "The softmax of the update runs over another set than the one that acted."
cause = "num_actions fell back to a default, or the subset comes from another step than num_actions."
remedy = "Derive num_actions from the subset itself, at the moment it is stored."
message = "num_actions is {num_actions}, but {what}"
*/
SELECT
    row_id,
    num_actions,
    concat_ws(
        ', ',
        CASE WHEN subset_len <> num_actions THEN 'subset_indices has ' || subset_len END,
        CASE WHEN mask_len <> num_actions THEN 'action_mask has ' || mask_len END,
        CASE WHEN logits_len <> num_actions THEN 'logits has ' || logits_len END,
        CASE WHEN $policy_subset_all AND num_actions <> $policy_action_space THEN
            'all ' || $policy_action_space || ' actions are offered'
        END
    ) AS what
FROM digest
WHERE subset_len <> num_actions
    OR mask_len <> num_actions
    OR logits_len <> num_actions
    OR ($policy_subset_all AND num_actions <> $policy_action_space)
