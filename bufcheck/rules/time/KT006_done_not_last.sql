/*
code = "KT006"
name = "done-not-last"
severity = "error"
scope = "episode"
needs = ["digest.episode_id", "digest.timestep", "digest.agent_id", "digest.terminated | digest.truncated"]
summary = "A row is marked terminated or truncated, but its agent has later rows in the same episode."
why = "Returns are cut in the middle of an episode, and the steps after the mark bootstrap from a state that never ended."
cause = "The flag is stored one step early, or rows of the next episode carry the old episode_id."
remedy = "Store the flags that env.step returned together with the action that caused them."
message = "marked {mark} at step {timestep}, but the agent goes on to step {last_step}"
*/
SELECT
    row_id,
    timestep,
    last_step,
    CASE WHEN terminated THEN 'terminated' ELSE 'truncated' END AS mark
FROM digest JOIN episodes USING (episode_id, agent_id)
WHERE first_done < last_step AND (terminated OR truncated) AND timestep < last_step
