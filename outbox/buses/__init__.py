"""Destinations that are message brokers: the base class `Bus`, and RabbitMQ, NATS and Kafka."""
