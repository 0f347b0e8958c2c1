"""NVFlare as the carrier of a federation: kits, daemons, jobs. Needs the extra `federation`."""
