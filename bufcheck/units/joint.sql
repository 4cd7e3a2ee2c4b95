/*
meaning = "the rows of all agents of a bad step; what follows it becomes an episode of its own"
cuts = true
splits = true
*/
SELECT row_id FROM bad
UNION
SELECT row_id FROM digest SEMI JOIN holes USING (episode_id, timestep)
