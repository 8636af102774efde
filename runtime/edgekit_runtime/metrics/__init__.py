"""What models have done, for Prometheus.
The page as text, and the page over HTTP on loopback.
"""
