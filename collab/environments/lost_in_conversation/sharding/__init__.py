"""The sharding pipeline (section 3): segment, rephrase, check, verify, review; and gradual variants of what came out."""
