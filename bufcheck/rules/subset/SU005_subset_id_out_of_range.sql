/*
code = "SU005"
name = "subset-id-out-of-range"
severity = "error"
scope = "row"
removes = true
applies = "categorical"
needs = ["digest.subset_stray"]
wants = ["metadata.policy_action_space"]
summary = "subset_indices names an action that does not exist."
why = "Gathering logits with it fails, or reads from the other end of the vector where the id is negative."
cause = "A padding value was stored as an id, or ids come from another version of the action catalogue."
remedy = "Cut padding off before storing, and declare the size of the catalogue as policy.action_space."
message = "subset_indices holds {subset_stray}, the action space is 0..{largest}"
*/
SELECT row_id, subset_stray, $policy_action_space - 1 AS largest
FROM digest
WHERE subset_stray IS NOT NULL
