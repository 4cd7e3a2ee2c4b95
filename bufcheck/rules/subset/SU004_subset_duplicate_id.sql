/*
code = "SU004"
name = "subset-duplicate-id"
severity = "error"
scope = "row"
removes = true
applies = "categorical"
needs = ["digest.subset_duplicate"]
summary = "An action id stands twice in subset_indices."
why = "Its logit is counted twice in the softmax, so every probability of the row is wrong."
cause = "Padding by repeating an id, or two candidate lists that were joined without removing what they share."
remedy = "Make the subset unique before the actor sees it; pad only what is masked."
message = "an id occurs twice among the {subset_len} of subset_indices"
*/
SELECT row_id, subset_len
FROM digest
WHERE subset_duplicate
