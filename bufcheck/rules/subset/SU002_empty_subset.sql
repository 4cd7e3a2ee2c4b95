/*
code = "SU002"
name = "empty-subset"
severity = "error"
scope = "row"
removes = true
applies = "categorical"
needs = ["digest.num_actions | digest.subset_len | digest.mask_legal"]
summary = "No action was offered: the subset is empty or the mask forbids all of it."
why = "A softmax over nothing is NaN; frameworks that guard against it sample uniformly over illegal actions instead."
cause = "The mask was read after the episode ended, or an environment state without legal moves was not treated as terminal."
remedy = "Do not act in such a state; end the episode before it."
message = "no legal action: num_actions {num_actions}, subset_indices {subset_len} ids, mask allows {mask_legal}"
*/
SELECT row_id, num_actions, subset_len, mask_legal
FROM digest
WHERE num_actions <= 0 OR subset_len = 0 OR mask_legal = 0
