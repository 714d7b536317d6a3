"""The database: dialects, connections, SQL, schema, models, and the formats of what is stored."""
