"""What authors of recipes use: a first package (scaffold), a proof (check), figures (bench), and what there is (facts)."""
