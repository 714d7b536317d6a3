"""Encrypt payloads and headers as they are stored in the table: the keys, the stored text, the cipher.

`docs/explanation/decisions/encryption.md` says what this protects against, and why it is built this way.
"""
