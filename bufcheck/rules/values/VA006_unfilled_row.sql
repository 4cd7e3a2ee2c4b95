/*
code = "VA006"
name = "unfilled-row"
severity = "error"
scope = "row"
removes = true
spurious = true
needs = ["digest.state_zero", "digest.old_log_prob"]
wants = ["digest.action_index | digest.action_zero"]
summary = "The whole row is zeros: state, action and log-prob."
why = "It was never a sample. It pulls the policy towards action 0 in a state that does not exist."
cause = "A preallocated buffer was dumped past the last row that was filled."
remedy = "Dump only the filled part of the buffer: buffer[:size], not buffer[:capacity]."
message = "state, action and old_log_prob are all 0 (num_actions {num_actions})"
*/
-- A single legal action has log-prob 0 rightly, so such a row proves nothing.
SELECT row_id, num_actions
FROM digest
WHERE state_zero
    AND old_log_prob = 0
    AND coalesce(action_index = 0, action_zero)
    AND legal_actions IS DISTINCT FROM 1
    AND coalesce(reward = 0, true)
    AND coalesce(value = 0, true)
