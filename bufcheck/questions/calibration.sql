/*
question = "Are the stored actions as likely to the actor as its own samples would be?"
needs = "actor"
*/
-- The rule sampling-miscalibrated says how far z may lie from 0.
SELECT agent_id, policy_version, pooled, rows, z, skew, agreeing, judged
FROM calibration
ORDER BY pooled DESC, agent_id, policy_version
