"""What gateways count beside their events, as it leaves an outbox and travels through Kafka: JSON."""

import msgspec

from protocol.counts import GatewayCounts

encode_counts = msgspec.json.Encoder().encode
decode_counts = msgspec.json.Decoder(GatewayCounts).decode
