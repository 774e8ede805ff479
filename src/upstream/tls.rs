//! The one place that chooses a TLS provider (`ring`) and root certificates (Mozilla's, compiled in).
//!
//! Compiled-in roots give the same result in a distroless image as on a workstation. rustls panics when two providers are
//! linked and none was installed, so [`install_provider`] runs before the first client is built.
//! Source: STYLE.md section 3, rows on rustls and root certificates.

use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier, crypto::ring};

/// Makes `ring` the provider of this process. Does nothing the second time.
pub fn install_provider() {
    // An error only says that one is installed already.
    drop(ring::default_provider().install_default());
}

/// Client settings with the compiled-in roots and no client certificate, for `hyper-rustls` and for `reqwest`.
///
/// # Errors
/// When the provider supports no safe protocol version; with `ring` it always does.
pub fn client_config() -> Result<ClientConfig, rustls::Error> {
    Ok(builder()?.with_webpki_roots().with_no_client_auth())
}

/// Client settings that still lack their roots.
pub(super) fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provider_can_be_installed_twice_and_the_settings_build() {
        install_provider();
        install_provider();

        let config = client_config().unwrap();

        assert!(config.alpn_protocols.is_empty(), "the connector decides on protocols");
    }
}
