"""JSON encoding of the gateways' counts, as they leave an outbox and travel through Kafka."""

import msgspec

from protocol.counts import GatewayCounts

encode_counts = msgspec.json.Encoder().encode
decode_counts = msgspec.json.Decoder(GatewayCounts).decode
