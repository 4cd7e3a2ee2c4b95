/*
code = "KT008"
name = "mixed-policy-version"
severity = "info"
scope = "episode"
needs = ["digest.policy_version", "digest.episode_id", "digest.timestep", "digest.agent_id"]
summary = "An episode was played by more than one policy version."
why = "Legal, but each row must be scored by the version that acted; code that loads one checkpoint per episode gets part of them wrong."
cause = "Rollouts that continue across updates, or asynchronous workers."
remedy = "Nothing, if the trainer keeps versions per row. Otherwise cut episodes at updates."
message = "versions {version_min} to {version_max} in one episode"
*/
SELECT first_row AS row_id, version_min, version_max
FROM episodes
WHERE version_min <> version_max
