//! A closed simulation of placement.
