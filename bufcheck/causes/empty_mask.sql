/*
meaning = "No action was legal, and a softmax over nothing was stored."
when = "first"
evidence = "the row offers no legal action"
fix = "End the episode before a state without legal actions, or add a no-op; never sample from an empty mask."
*/
-- A row that was never filled offers nothing either.
SELECT row_id
FROM findings
WHERE rule = 'empty-subset'
    AND row_id NOT IN (SELECT row_id FROM findings WHERE rule = 'unfilled-row')
