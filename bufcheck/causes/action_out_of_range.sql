/*
meaning = "The action, its subset or its size contradict each other, and nothing says why."
when = "last"
effect = true
evidence = "the action index or an id lies outside what was offered, or the subset is not as long as num_actions"
fix = "Assert 0 <= action_index < num_actions == len(subset_indices) where rows are made. Give --actor for a closer diagnosis."
*/
SELECT row_id
FROM findings
WHERE rule IN (
    'action-index-out-of-range', 'subset-id-out-of-range', 'subset-length-mismatch', 'subset-duplicate-id'
)
-- Where nothing is on offer, every index is out of range.
AND row_id NOT IN (SELECT row_id FROM findings WHERE rule IN ('unfilled-row', 'empty-subset'))
