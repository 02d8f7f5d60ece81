//! Configurations: keys in other places, sparse ones, ones that change the numbers.
