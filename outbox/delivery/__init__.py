"""Claim, dispatch and settle, and the leases that protect them."""
