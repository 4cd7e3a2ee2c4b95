/*
code = "KT007"
name = "row-after-done"
severity = "error"
scope = "episode"
removes = true
spurious = true
needs = ["digest.episode_id", "digest.timestep", "digest.agent_id", "digest.terminated | digest.truncated"]
summary = "A row follows a step that ended the episode for its agent."
why = "It is padding for a dead agent or an automatic reset whose action was ignored: training on it teaches from nothing."
cause = "Fixed-length rollouts padded after an agent's end, next-step autoreset, or a done flag stored too early."
remedy = "Drop rows after the end; with next-step autoreset, skip the reset row."
message = "step {timestep} follows the end at step {first_done}"
*/
SELECT row_id, timestep, first_done
FROM digest JOIN episodes USING (episode_id, agent_id)
WHERE timestep > first_done
