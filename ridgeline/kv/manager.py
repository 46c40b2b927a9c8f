"""The door of the KV cache's bookkeeping: who holds which page. Called by the scheduler only; owns no bytes.

(interface sketch: to be implemented)
"""
