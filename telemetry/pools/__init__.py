"""What pools looked like: one sample a minute, for reports and longer views."""
