select stamp, paused_at is not null as paused, pause_reason
from outbox.publishing
