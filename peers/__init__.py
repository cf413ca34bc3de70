"""Recipes that fetch and run other people's software (Apache Kafka, its Java clients) for comparison with Oncelog."""
