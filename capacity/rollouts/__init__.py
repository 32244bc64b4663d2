"""Rollouts: a pool moved to another revision replica by replica, or back."""
