select topic, policy, dead_letter_topic, max_attempts, paused_at is not null as paused
from outbox.topic
